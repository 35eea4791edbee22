//! The router's tree.
