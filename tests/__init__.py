"""What shows that dispatch keeps its promises: one test_*.py per room, stories in histories/."""
