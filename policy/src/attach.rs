//! When a revision's requests are routed to activator-ext, and to which of its pods (contracts §5).
//!
//! A revision is *attached* by an EndpointSlice of its public Service which names the pods of role `data` that own the
//! function, and then by a label that makes Kubernetes stop copying Knative's own endpoints next to it. It is
//! *detached* in the reverse order. Each observation of the cluster gives one [`Step`]. The step may be lost, carried
//! out twice, or come from a process that ends right after it: the next observation, by any process, continues from the
//! actual state.
//!
//! | actual state | wanted state | step |
//! |---|---|---|
//! | no slice, or one that names other pods than the owners | attached | [`Step::Write`] |
//! | the slice names the owners, no label | attached | [`Step::SetLabel`] |
//! | the label, and no pod that could own the function | attached | nothing for [`EMPTY_MAX`], then as if it were not wanted |
//! | the label | not attached | [`Step::ClearLabel`] |
//! | a slice, no label | not attached | [`Step::DeleteSlice`] when Knative's endpoints are copied again, or after [`COPY_MAX`] |
//!
//! So while the label is set, a slice names a pod that answered, and without the label Kubernetes copies Knative's
//! endpoints. The path is never empty by a decision, only while the death of a pod has not been detected.
//!
//! # Examples
//!
//! ```
//! use policy::Time;
//! use policy::attach::{Attachment, Owner, Step, View};
//!
//! let owners = [Owner(1), Owner(2)];
//! let (is_wanted, slice, has_label, is_copied) = (true, None, false, false);
//! let mut view = View { is_wanted, owners: &owners, slice, has_label, is_copied };
//! let mut attachment = Attachment::default();
//! assert_eq!(attachment.next(Time(0), &view), Step::Write);
//! view.slice = Some(&owners);
//! assert_eq!(attachment.next(Time(1), &view), Step::SetLabel);
//! view.has_label = true;
//! assert_eq!(attachment.next(Time(2), &view), Step::Rest(None));
//! ```

mod health;
mod owners;

pub use health::{Health, MISSES_MAX};
pub use owners::{Owner, owners};

use crate::{Span, Time};

/// Time without any pod that could own the revision after which it is detached.
pub const EMPTY_MAX: Span = Span::from_secs(5);
/// Time within which Kubernetes has copied Knative's endpoints, if there are any.
pub const COPY_MAX: Span = Span::from_secs(2);

/// Observed state of a revision in the cluster.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Whether the revision has opted in and can be attached at all.
    pub is_wanted: bool,
    /// Pods that should own the revision, as returned by [`owners()`]; empty if no pod is ready, has answered a probe,
    /// and stays.
    pub owners: &'a [Owner],
    /// Pods that the revision's slice names; `None` if there is no slice.
    pub slice: Option<&'a [Owner]>,
    /// Whether the public Endpoints have the label that prevents their being copied.
    pub has_label: bool,
    /// Whether a slice exists that Kubernetes has copied from the public Endpoints.
    pub is_copied: bool,
}

/// Next step; nothing else may be done before the next observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create or change the slice so that it names the owners.
    Write,
    /// Add the label to the public Endpoints.
    SetLabel,
    /// Remove the label from the public Endpoints.
    ClearLabel,
    /// Delete the revision's slice.
    DeleteSlice,
    /// Do nothing until something changes or this time is reached.
    Rest(Option<Time>),
}

/// State of a revision's attachment, as it is displayed to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentState {
    /// Requests are routed to activator-ext.
    Attached,
    /// Requests are about to be routed to activator-ext.
    Attaching,
    /// Requests are still routed to activator-ext, or Knative's endpoints are not copied again yet.
    Detaching,
    /// Requests take Knative's own path.
    Detached,
}

/// Controller of one revision's attachment. Its state may be lost at any time: it only measures durations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attachment {
    /// Time since which no pod could own the revision.
    empty_since: Option<Time>,
    /// Time since which the revision has a slice that must go.
    leaving_since: Option<Time>,
}

impl View<'_> {
    /// Returns the state of the attachment.
    #[must_use]
    pub const fn state(&self) -> AttachmentState {
        match (self.is_wanted, self.has_label, self.slice.is_some()) {
            (true, true, true) => AttachmentState::Attached,
            (true, _, _) => AttachmentState::Attaching,
            (false, false, false) => AttachmentState::Detached,
            (false, _, _) => AttachmentState::Detaching,
        }
    }
}

impl Attachment {
    /// Returns the next step for the state observed at `now`.
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
