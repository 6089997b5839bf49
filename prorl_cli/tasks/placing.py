"""Files into a box: a task's own, those of a policy's work, hidden ones; those that are programs may be executed there.

Called by `tested` and `grading`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prorl_cli.agent import LastingBox


async def place(box: LastingBox, folder: str, files: Mapping[str, bytes], programs: Collection[str]) -> None:
    """Raises `FileRefused` where something else stands in their place."""
    for mode, chosen in ((0o644, files.keys() - programs), (0o755, files.keys() & programs)):
        if chosen:
            await box.put_all(folder, {path: files[path] for path in sorted(chosen)}, mode)


async def place_texts(box: LastingBox, folder: str, texts: Mapping[str, str]) -> None:
    """Of a row, which says of no file that it is a program: one that names its interpreter is."""
    files = {path: text.encode() for path, text in texts.items()}
    await place(box, folder, files, [path for path, data in files.items() if data.startswith(b"#!")])
