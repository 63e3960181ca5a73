"""OCI registries and image layouts as pure codecs and flows: no socket, no disk, no async.

``reference`` names things, ``manifest`` and ``index`` are the documents, ``artifacts`` the forms in
which cards and workflows travel, ``catalog_index`` the list of both where there is no catalog.
``catalog`` and ``bulk`` are two extensions with which a hub tells more than other registries.
``flows`` read and ``pushing`` writes, out of the parts in ``exchange``; ``auth`` goes around both, with
the logins of ``docker_config``. ``weather`` says what is waited out, ``wire`` has error bodies and links.
"""
