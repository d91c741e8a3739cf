"""The laboratory's commands of `tint`; `tintformer.cli` finds them by an entry point."""
