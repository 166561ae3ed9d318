"""For users' own tests: is shadow text anywhere it must not be, does an agent break its prefix?"""

from langgraph_shadow.testing.ghosts import GhostBranch, ghost_branch
from langgraph_shadow.testing.isolation import Search, Way, aassert_no_ghosts, assert_no_ghosts
from langgraph_shadow.testing.prefix_guard import PrefixBroken, PrefixGuard
from langgraph_shadow.testing.search import Ghost, GhostFound

__all__ = [
    "Ghost",
    "GhostBranch",
    "GhostFound",
    "PrefixBroken",
    "PrefixGuard",
    "Search",
    "Way",
    "aassert_no_ghosts",
    "assert_no_ghosts",
    "ghost_branch",
]
