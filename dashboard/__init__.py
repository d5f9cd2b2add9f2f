"""The web dashboard where operators watch the fleet and let it go."""
