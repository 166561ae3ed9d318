"""For users' own tests: is shadow text anywhere it must not be?"""

from langgraph_shadow.testing.ghosts import GhostBranch, ghost_branch
from langgraph_shadow.testing.isolation import Search, Way, aassert_no_ghosts, assert_no_ghosts
from langgraph_shadow.testing.search import Ghost, GhostFound

__all__ = [
    "Ghost",
    "GhostBranch",
    "GhostFound",
    "Search",
    "Way",
    "aassert_no_ghosts",
    "assert_no_ghosts",
    "ghost_branch",
]
