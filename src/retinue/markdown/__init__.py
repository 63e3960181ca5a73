"""Agents in Markdown: a file with front matter becomes an agent whose skill is a run of one step think."""
