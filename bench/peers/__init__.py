"""Other engines, each in a throw-away environment of its own, at the settings that its own documentation recommends."""
