"""A tool for tests: runs Python in the box and answers with the value of `out`."""


def run(arguments):
    names = {}
    exec(arguments["code"], names)
    return str(names.get("out"))
