#!/bin/bash
# Rendered by prorl for one submission: every process on a node of the component `@{component}` starts here.

# What the recipe's `cluster.setup` asks for.
@{setup}

exec @{interpreter} "$@"
