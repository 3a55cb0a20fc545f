//! A GPU shared by MPS: `device`'s, with one stream for each process.

use std::collections::{BTreeMap, VecDeque};

use device::compute::{Compute, Kernel, MpsServer, Turns};
use device::law::Law;
use device::ledger::{Job, Ledger, ProcessId, WorkId};
use device::{Span, Time};

/// SMs of the device.
pub(crate) const SMS: u32 = 132;

/// A kernel that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// Number of the process, as given to [`Gpu::launch`].
    pub(crate) process: u32,
    /// Begin on the device, in nanoseconds.
    pub(crate) begin: u64,
    /// End on the device, in nanoseconds.
    pub(crate) end: u64,
}

/// Kernels of one process that have not ended, the running one first.
#[derive(Debug, Default)]
struct Stream {
    sms: u32,
    queue: VecDeque<(u32, u64)>,
    begin: u64,
}

/// One device.
#[derive(Debug)]
pub(crate) struct Gpu {
    compute: Compute,
    ledger: Ledger,
    streams: BTreeMap<u32, Stream>,
    command: u64,
}

impl Gpu {
    pub(crate) fn new() -> Self {
        let turns = Turns {
            slice: Span::from_millis(2),
            switch: Span(200_000),
        };
        Self {
            compute: Compute::new(0, SMS, SMS, turns),
            ledger: Ledger::default(),
            streams: BTreeMap::new(),
            command: 0,
        }
    }

    /// Admits a client of the MPS server with this share of the SMs.
    pub(crate) fn admit(&mut self, process: u32, sm_hundredths: u32) {
        let sms = (SMS * sm_hundredths / 10_000).max(1);
        self.compute
            .admit(ProcessId(process), sms, Some(MpsServer(0)));
        let stream = Stream {
            sms,
            ..Stream::default()
        };
        self.streams.insert(process, stream);
    }

    /// Removes a process and its kernels.
    pub(crate) fn dismiss(&mut self, now: u64, process: u32, ended: &mut Vec<Ended>) {
        self.advance(now, ended);
        self.streams.remove(&process);
        self.compute.dismiss(ProcessId(process), &mut self.ledger);
        self.compute.share(&mut self.ledger);
    }

    /// Enqueues a kernel.
    pub(crate) fn launch(
        &mut self,
        now: u64,
        process: u32,
        tag: u32,
        ns: u64,
        ended: &mut Vec<Ended>,
    ) {
        self.advance(now, ended);
        let Some(stream) = self.streams.get_mut(&process) else {
            return;
        };
        stream.queue.push_back((tag, ns));
        if stream.queue.len() == 1 {
            self.start(now, process);
            self.compute.share(&mut self.ledger);
        }
    }

    fn start(&mut self, now: u64, process: u32) {
        let Some(stream) = self.streams.get_mut(&process) else {
            return;
        };
        let Some(&(tag, ns)) = stream.queue.front() else {
            return;
        };
        stream.begin = now;
        self.command += 1;
        let kernel = Kernel {
            duration: Span(ns),
            sms: stream.sms,
            law: Law::Linear,
            interference_millionths: 0,
        };
        let work = WorkId {
            command: self.command,
            node: 0,
        };
        let process = ProcessId(process);
        self.compute.start(Job { work, process, tag }, &kernel);
    }

    /// Returns the time of the next end of a kernel, in nanoseconds.
    pub(crate) fn next(&self) -> Option<u64> {
        self.compute.next().map(|at| at.0)
    }

    /// Advances to `now`, and appends the kernels that have ended.
    pub(crate) fn advance(&mut self, now: u64, ended: &mut Vec<Ended>) {
        let mut jobs = Vec::new();
        loop {
            let to = self.compute.next().map_or(now, |next| next.0.min(now));
            self.compute.advance(Time(to), &mut jobs, &mut self.ledger);
            let is_over = jobs.is_empty() && to == now;
            for job in jobs.drain(..) {
                let process = job.process.0;
                if let Some(stream) = self.streams.get_mut(&process) {
                    stream.queue.pop_front();
                    ended.push(Ended {
                        process,

                        begin: stream.begin,
                        end: to,
                    });
                    self.start(to, process);
                }
            }
            self.compute.share(&mut self.ledger);
            if is_over {
                break;
            }
        }
        let _entries = self.ledger.take();
    }

    /// Returns whether a process has kernels that have not ended.
    pub(crate) fn is_busy(&self, process: u32) -> bool {
        self.streams
            .get(&process)
            .is_some_and(|stream| !stream.queue.is_empty())
    }

    /// Returns the tag of the running kernel of a process and its begin, in nanoseconds.
    pub(crate) fn running(&self, process: u32) -> Option<(u32, u64)> {
        let stream = self.streams.get(&process)?;
        stream.queue.front().map(|(tag, _)| (*tag, stream.begin))
    }
}
