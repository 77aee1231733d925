"""The one place where private torch interfaces are used, a file a topic; `TRIED` in `frontend/versions.py` says with which torch."""
