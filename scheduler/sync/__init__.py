"""Exchange state with hosts: store what agents report, and build the desired state that they carry out."""
