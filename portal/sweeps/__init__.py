"""Run the periodic work of the portal: stop idle notebooks, and delete or expire old rows."""
