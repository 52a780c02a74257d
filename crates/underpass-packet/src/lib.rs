//! Checked zero-copy views and builders of wire formats.
