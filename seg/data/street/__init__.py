"""The demo's procedural street world: one scene grammar, drawn as a game would and as a camera would."""
