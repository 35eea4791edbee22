//! Where a prompt should go.
