"""What tests share: models, sessions, trees, text.  Makes no claims."""

import pytest

pytest.register_assert_rewrite("toys.memories")
