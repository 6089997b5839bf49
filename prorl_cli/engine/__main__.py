"""`python -m prorl_cli.engine RUN_DIR`: one engine of a run."""

from prorl_cli.role import Role, main


async def body(role: Role) -> None:
    """Imports what the kind of engine needs only here, once the endpoint says that this process lives."""
    if role.recipe.engine.kind == "vllm":
        from prorl_cli.engine.vllm import follow
    else:
        from prorl_cli.engine.follow import follow

    await follow(role)


if __name__ == "__main__":
    main("engine", body)
