"""`python -m prorl_cli.engine RUN_DIR`: one embedded engine of a run."""

from prorl_cli.role import Role, main


async def body(role: Role) -> None:
    """Imports torch only here, once the endpoint says that this process lives."""
    from prorl_cli.engine.follow import follow

    await follow(role)


if __name__ == "__main__":
    main("engine", body)
