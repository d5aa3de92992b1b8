"""The subcommands: each module has EXAMPLES, `add_arguments(parser)` and `run(args) -> exit code`."""
