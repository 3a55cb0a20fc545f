//! Where [views](crate::view::View) come from.

pub(crate) mod manifests;
