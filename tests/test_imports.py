"""No module imports another that imports it back, whatever lies between; imports inside functions count."""

from __future__ import annotations

import grimp


def test_there_are_no_import_cycles() -> None:
    graph = grimp.build_graph("isocompute", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    left = dict(imported)
    while free := [module for module, others in left.items() if not others & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"a cycle goes through some of {sorted(left)}"
