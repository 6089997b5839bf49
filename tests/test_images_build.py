"""Builds by real processes, with a program that plays Apptainer: one builds for all, whoever dies meanwhile."""


from tests.images_kit import begun, fake, make_definition, store_of

__all__ = ["fake"]


def test_an_image_is_built_once_and_found_by_key_name_and_digest(tmp_path, fake):
    store, lines = store_of(tmp_path), []
    definition = make_definition(tmp_path)
    built = store.build(definition, program=fake, progress=lines.append)
    again = store.build(definition, program=fake, progress=lines.append)
    assert again == built == store.find(built.key) == store.find("fake") == store.find(built.digest[:12])
    assert begun(tmp_path) == 1
    assert [line.stage for line in lines][-2:] == ["publishing", "reused"]
    assert ("building", "INFO:    building") in [(line.stage, line.line) for line in lines]
    assert oct(built.path.stat().st_mode & 0o777) == "0o444"
    assert built.packages == {"pip": ["numpy==2.0"], "system": ["bash=5.2"]}
    assert built.manifest.bash == "5.2.15"
    assert list((tmp_path / "scratch").iterdir()) == []
