"""Models, sessions, trees and texts that the tests share."""

import pytest

pytest.register_assert_rewrite("toys.memories")
