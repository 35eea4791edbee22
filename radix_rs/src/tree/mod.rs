//! The replica's tree.
