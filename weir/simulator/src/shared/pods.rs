//! The existing pods, under numbers that are reused after a pod is removed.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use policy::tokens::Quota;
use policy::{Span, Time};

use super::gpu::{Member, Suspension};

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) arrival: Time,
    pub(super) deadline: Time,
}

/// Phase of a pod's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Starting,
    Ready,
    /// Dismissed: the pod answers its remaining requests.
    Leaving,
    /// Removed: the number is free.
    Gone,
}

#[derive(Debug)]
pub(super) struct Pod {
    pub(super) function: u32,
    pub(super) gpu: u32,
    pub(super) sm: u32,
    pub(super) quota: Quota,
    pub(super) phase: Phase,
    /// Distinguishes the pods that had the same number; 0 for a pod of closed loops or a removed one.
    pub(super) start: u64,
    /// Pause between an answer and the next request of a closed loop; `None` if the pod serves a workload.
    pub(super) loops: Option<Span>,
    /// Periodic suspension of the pod's process, if any.
    pub(super) suspension: Option<Suspension>,
    /// Handle of the pod on its GPU, once it is ready.
    pub(super) member: Option<Member>,
    pub(super) serves: Option<Request>,
    pub(super) queue: VecDeque<Request>,
}

impl Pod {
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len() + usize::from(self.serves.is_some())
    }
}

#[derive(Debug, Default)]
pub(super) struct Pods {
    pods: Vec<Pod>,
    free: Vec<u32>,
    /// Pods that have answered all their requests and are to be removed.
    pub(super) leavers: Vec<u32>,
}

impl Pods {
    /// Returns the number that the next pod will have.
    pub(super) fn next(&self) -> u32 {
        let new = || u32::try_from(self.pods.len()).unwrap_or(u32::MAX);
        self.free.last().copied().unwrap_or_else(new)
    }

    pub(super) fn add(
        &mut self,
        function: u32,
        gpu: u32,
        sm: u32,
        quota: Quota,
        loops: Option<Span>,
    ) -> u32 {
        let number = self.next();
        let _reused = self.free.pop();
        let mut pod = Pod {
            function,
            gpu,
            sm,
            quota,
            phase: Phase::Starting,
            start: 0,
            loops,
            suspension: None,
            member: None,
            serves: None,
            queue: VecDeque::new(),
        };
        if let Some(old) = self.pods.get_mut(number as usize) {
            std::mem::swap(&mut pod.queue, &mut old.queue);
            *old = pod;
        } else {
            self.pods.push(pod);
        }
        number
    }

    pub(super) fn remove(&mut self, pod: u32) {
        let own = &mut self.pods[pod as usize];
        debug_assert!(
            own.outstanding() == 0,
            "a removed pod must have no requests"
        );
        own.phase = Phase::Gone;
        own.start = 0;
        own.member = None;
        self.free.push(pod);
    }

    /// Returns the existing pods.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pod> {
        (self.pods.iter()).filter(|pod| pod.phase != Phase::Gone)
    }

    /// Returns the number of existing pods.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.pods.len() - self.free.len()).unwrap_or(u32::MAX)
    }
}

impl Index<u32> for Pods {
    type Output = Pod;

    fn index(&self, pod: u32) -> &Pod {
        &self.pods[pod as usize]
    }
}

impl IndexMut<u32> for Pods {
    fn index_mut(&mut self, pod: u32) -> &mut Pod {
        &mut self.pods[pod as usize]
    }
}
