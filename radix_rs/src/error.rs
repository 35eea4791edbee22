//! One error enum for each part.
