"""`tint eval list`: what ships with the package."""

from __future__ import annotations

from tintformer.cli.options import Json
from tintformer.console import print_json, print_table


def listing(json: Json = False) -> None:
    """What ships: descriptions of data, and the methods that are compared."""
    from tintformer.experiments.described import read_description, shipped
    from tintformer.experiments.methods import METHODS

    descriptions = {name: read_description(name)[0] for name in shipped()}
    data = [{"name": name, "kind": each["kind"], "title": each["title"]} for name, each in descriptions.items()]
    methods = [{"method": name, "title": method.title} for name, method in METHODS.items()]
    if json:
        print_json({"data": data, "methods": methods})
        return
    print_table(data, title="data")
    print_table(methods, title="methods")
