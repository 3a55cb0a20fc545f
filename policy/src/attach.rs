//! When a revision's requests come to activator-ext, and to which of its pods (design §3.1).
//!
//! A revision is *attached* by an EndpointSlice of its public Service which names the pods of role `data` that own the
//! function, and then by a label by which Kubernetes stops copying Knative's own endpoints beside it. It is *detached* in
//! the other order. Each look at the cluster gives one [`Step`], which may be lost, or carried out twice, or be of a process
//! that ends after it: the next look, by whatever process, goes on from what is there.
//!
//! | what is there | what is wanted | step |
//! |---|---|---|
//! | no slice, or one that names others than the owners | attached | [`Step::Write`] |
//! | the slice names the owners, no label | attached | [`Step::SetLabel`] |
//! | the label, and no pod that could own it | attached | nothing for [`EMPTY_MAX`], then as if it were not wanted |
//! | the label | not attached | [`Step::ClearLabel`] |
//! | a slice, no label | not attached | [`Step::DeleteSlice`] when Knative's endpoints are copied again, or after [`COPY_MAX`] |
//!
//! So with the label there is a slice that named a pod which answered, and without the label Kubernetes copies Knative's
//! endpoints: the path is never empty by a decision, only while a pod that has died is not known to be dead.

mod health;
mod owners;

pub use health::{Health, MISSES_MAX};
pub use owners::{Owner, owners};

use crate::{Span, Time};

/// No pod could own the revision for so long: it is detached.
pub const EMPTY_MAX: Span = Span::from_secs(5);
/// Kubernetes has copied Knative's endpoints by then, if there is anything to copy.
pub const COPY_MAX: Span = Span::from_secs(2);

/// What a look at the cluster finds of a revision.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// It has opted in, and can be attached at all.
    pub is_wanted: bool,
    /// The pods that are to own it, as [`owners()`] gives them; none: no pod is ready, has answered a probe and stays.
    pub owners: &'a [Owner],
    /// The pods that its slice names; `None`: there is no slice.
    pub slice: Option<&'a [Owner]>,
    /// Its public Endpoints have the label by which they are not copied.
    pub has_label: bool,
    /// A slice that Kubernetes has copied from its public Endpoints is there.
    pub is_copied: bool,
}

/// What is to be done next. Nothing else is to be done before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the slice, or change it, so that it names the owners.
    Write,
    /// Add the label.
    SetLabel,
    /// Take the label away.
    ClearLabel,
    /// Delete the slice.
    DeleteSlice,
    /// Nothing, until something changes or this time has come.
    Rest(Option<Time>),
}

/// How a revision stands, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its requests come to activator-ext.
    Attached,
    /// They are about to.
    Attaching,
    /// They come to activator-ext still, or Knative's endpoints are not copied again yet.
    Detaching,
    /// They go Knative's way.
    Detached,
}

/// The attachment of one revision. What it remembers may be lost at any time: it only counts how long something lasts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attachment {
    /// Since when no pod could own it.
    empty_since: Option<Time>,
    /// Since when it has a slice and is to have none.
    leaving_since: Option<Time>,
}

impl View<'_> {
    /// How it stands.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        match (self.is_wanted, self.has_label, self.slice.is_some()) {
            (true, true, true) => Standing::Attached,
            (true, _, _) => Standing::Attaching,
            (false, false, false) => Standing::Detached,
            (false, _, _) => Standing::Detaching,
        }
    }
}

impl Attachment {
    /// Returns what is to be done about what a look has found at `now`.
    pub fn next(&mut self, now: Time, view: &View<'_>) -> Step {
        if !view.is_wanted || !view.owners.is_empty() {
            self.empty_since = None;
        } else if view.has_label {
            let until = self.empty_since.get_or_insert(now).after(EMPTY_MAX);
            if now < until {
                return Step::Rest(Some(until));
            }
        }
        if view.is_wanted && !view.owners.is_empty() {
            self.leaving_since = None;
            return if view.slice != Some(view.owners) {
                Step::Write
            } else if !view.has_label {
                Step::SetLabel
            } else {
                Step::Rest(None)
            };
        }
        if view.has_label {
            self.leaving_since = None;
            return Step::ClearLabel;
        }
        if view.slice.is_none() {
            self.leaving_since = None;
            return Step::Rest(None);
        }
        let until = self.leaving_since.get_or_insert(now).after(COPY_MAX);
        if view.is_copied || now >= until {
            return Step::DeleteSlice;
        }
        Step::Rest(Some(until))
    }
}
