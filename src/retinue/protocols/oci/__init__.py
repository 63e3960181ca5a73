"""OCI registries and image layouts as pure codecs and flows: no socket, no disk, no async.

``reference`` names things, ``manifest`` and ``index`` are the documents, ``artifacts`` the forms in
which cards and workflows travel, ``flows`` the exchanges, ``wire`` the error bodies and paging links.
"""
