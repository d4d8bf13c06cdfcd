"""Cost model: what one speculative step costs, what it could cost, and the speed-up that follows."""
