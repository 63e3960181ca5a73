"""Pure codecs of the Model Context Protocol: names, tools, content, resources and prompts."""
