"""``make demo-think``: an agent in Markdown finds skills of a mesh, uses them, is killed and goes on."""
