//! Events from threads which carry out what takes long.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use agent_core::Event;

use crate::state::Waker;

/// Maximum number of events in the queue; the sending threads block while it is full.
const EVENTS_MAX: usize = 1_024;

/// Queue of events from other threads, which wake the service. A thread sends at most one.
#[derive(Debug)]
pub(super) struct Later {
    sender: SyncSender<Event>,
    receiver: Receiver<Event>,
    waker: Arc<Waker>,
}

impl Later {
    /// Creates an empty queue.
    pub(super) fn new(waker: Waker) -> Self {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        Self {
            sender,
            receiver,
            waker: Arc::new(waker),
        }
    }

    /// Returns a function that adds the event, for another thread.
    pub(super) fn reporter(&self, event: Event) -> impl FnOnce() + Send + use<> {
        let (sender, waker) = (self.sender.clone(), Arc::clone(&self.waker));
        move || {
            // The service may have ended.
            let _ended = sender.send(event);
            waker.wake();
        }
    }

    /// Returns the next event, if there is one.
    pub(super) fn next(&self) -> Option<Event> {
        self.receiver.try_recv().ok()
    }
}
