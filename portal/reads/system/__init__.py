"""Check the health of the installation: processes, queues, lags, clocks, storage, certificates and backups.

`health.py` combines the checks for the page, the API and the metrics. Their texts are in
`portal/wording/system_texts.py`.
"""
