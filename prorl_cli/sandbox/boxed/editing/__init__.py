"""The edit tool of a box: `texts` reads and replaces files, `commands` are what it can do, `session` remembers undos.

All file work is done in a child of its own per call, for any file can be slow, a pipe, or endless. Refuses what is
no text, too large, or no file, in words.
"""
