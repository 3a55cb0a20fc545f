//! The channel between the agent's other parts and the token service: commands to it, figures from it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tokio::sync::oneshot;

use agent_core::{MemorySettings, OrderAnswer, PodOrder};

use super::device_memory::DeviceMemory;
use super::{Figures, Pod, PodKey, Slot, SlotKey};
use crate::config::TokenSettings;
use crate::events::Events;

/// Capacity of the command queue; a sender blocks while it is full.
pub const COMMANDS_MAX: usize = 1_024;
/// Longest time that [`ServiceHandle::refresh`] waits for figures.
pub const REFRESH_MAX: Duration = Duration::from_millis(50);

/// Sender of the answer to an operator's order.
pub type OrderReply = oneshot::Sender<OrderAnswer>;

/// Message to the token service. Commands are sent in the order of the events; a pod's slot is added before the pod.
#[derive(Debug)]
pub enum Command {
    /// A slot was found.
    SlotAdded(Arc<Slot>),
    /// A slot is lost: work on it has failed, and no tokens are granted on it.
    SlotLost {
        /// Slot that was lost.
        slot: SlotKey,
        /// Cause of the loss, shown to operators.
        reason: String,
    },
    /// A lost slot is usable again, possibly with other properties.
    SlotBack(Arc<Slot>),
    /// The state of a slot's MPS daemon has changed.
    MpsState {
        /// Slot of the daemon.
        slot: SlotKey,
        /// Whether the daemon answers.
        is_up: bool,
        /// Description of the state, for operators.
        text: String,
    },
    /// The driver has listed the device memory of the processes on a slot.
    DeviceMemory {
        /// Slot of the processes.
        slot: SlotKey,
        /// Process IDs, each with its device memory in bytes.
        processes: Vec<(u32, u64)>,
    },
    /// A pod was found and placed. Its processes connect to the listener, a non-blocking `SOCK_SEQPACKET` socket.
    PodAdded {
        /// Pod with its slot and settings.
        pod: Arc<Pod>,
        /// Listening socket in the pod's gate folder.
        listener: OwnedFd,
        /// Listening socket for the queue of its requests, likewise; `None`: the pod has no leases.
        queue: Option<OwnedFd>,
    },
    /// A pod's annotations have changed; key, serial, slot and folder stay the same. Settings fixed for a process's lifetime
    /// (the SM share) apply to processes that connect later.
    PodChanged(Arc<Pod>),
    /// A pod was removed; the service closes its connections.
    PodRemoved(PodKey),
    /// An operator moves a pod's model to the host, or back to its device.
    Move {
        /// Pod of the model.
        pod: PodKey,
        /// Change that is ordered.
        order: PodOrder,
        /// Time for which work in flight is waited for, in milliseconds.
        drain_ms: u32,
        /// Whether the answer comes at the end of the move; otherwise at its beginning.
        waits: bool,
        /// Receives the answer.
        answer: OrderReply,
    },
    /// The agent stops. Gates follow the processes' own rule for a lost agent.
    Stop,
}

/// Settings and shared state passed to the service at its start.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// Rule and durations of the token scheduler.
    pub tokens: TokenSettings,
    /// How models are moved between devices and host.
    pub memory: MemorySettings,
    /// Event log to which the service appends.
    pub events: Arc<Events>,
    /// Device memory of each process, as reported by NVML.
    pub device_memory: Arc<DeviceMemory>,
    /// File to which all events and actions are written ([`agent_core::record`]).
    pub record: Option<PathBuf>,
}

/// Error of sending a command to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The command queue is full.
    #[error("the token service has {COMMANDS_MAX} commands to carry out")]
    Busy,
    /// The service's thread has ended.
    #[error("the token service has ended")]
    Ended,
}

/// The latest figures and their generation, shared by both ends of the channel.
struct Board {
    figures: Mutex<(u64, Arc<Figures>)>,
    published: Condvar,
    /// Whether a reader waits for newer figures.
    is_requested: AtomicBool,
    /// Whether the service has dropped its end.
    is_ended: AtomicBool,
}

impl fmt::Debug for Board {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Board").finish_non_exhaustive()
    }
}

/// The sending end of the channel to the service: sends commands and reads figures. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServiceHandle {
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    board: Arc<Board>,
}

/// The service's end of the channel: receives commands and publishes figures.
#[derive(Debug)]
pub struct Inbox {
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    board: Arc<Board>,
}

/// Creates a channel to the service and returns both ends.
///
/// # Errors
/// Returns an error when the process has no file descriptor left.
pub fn service_channel() -> Result<(ServiceHandle, Inbox), Errno> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = sync_channel(COMMANDS_MAX);
    let board = Arc::new(Board {
        figures: Mutex::new((0, Arc::new(Figures::none()))),
        published: Condvar::new(),
        is_requested: AtomicBool::new(false),
        is_ended: AtomicBool::new(false),
    });
    let handle = ServiceHandle {
        commands: sender,
        wake: Arc::clone(&wake),
        board: Arc::clone(&board),
    };
    let inbox = Inbox {
        commands: receiver,
        wake,
        board,
    };
    Ok((handle, inbox))
}

/// Wakes the service from another thread.
#[derive(Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the descriptor of the service readable, so that its thread looks at what has come.
    pub fn wake(&self) {
        notify(&self.0);
    }
}

fn notify(wake: &OwnedFd) {
    // A write fails only when the counter is full, and then the descriptor is readable already.
    let _full = rustix::io::write(wake, &1_u64.to_ne_bytes());
}

impl ServiceHandle {
    /// Sends a command and wakes the service. Blocks while [`COMMANDS_MAX`] commands are queued: not for async code.
    ///
    /// # Errors
    /// Returns [`SendError::Ended`] when the service has ended.
    pub fn send(&self, command: Command) -> Result<(), SendError> {
        match self.try_or_return(command) {
            Ok(()) => Ok(()),
            Err((SendError::Ended, _)) => Err(SendError::Ended),
            Err((SendError::Busy, command)) => {
                self.commands.send(command).map_err(|_| SendError::Ended)?;
                notify(&self.wake);
                Ok(())
            }
        }
    }

    /// Sends a command without blocking and wakes the service.
    ///
    /// # Errors
    /// Returns [`SendError::Ended`] when the service has ended, and [`SendError::Busy`] when the queue is full.
    pub fn try_send(&self, command: Command) -> Result<(), SendError> {
        self.try_or_return(command).map_err(|(error, _)| error)
    }

    fn try_or_return(&self, command: Command) -> Result<(), (SendError, Command)> {
        let sent = self.commands.try_send(command);
        notify(&self.wake);
        sent.map_err(|error| match error {
            TrySendError::Full(command) => (SendError::Busy, command),
            TrySendError::Disconnected(command) => (SendError::Ended, command),
        })
    }

    /// Returns whether the service has ended, regularly or not.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.board.is_ended.load(Ordering::Acquire)
    }

    /// Returns the figures published last.
    #[must_use]
    pub fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.board.lock().1)
    }

    /// Requests new figures and blocks until they are published, at most for [`REFRESH_MAX`]; then returns the figures
    /// published last. Not for async code.
    #[must_use]
    pub fn refresh(&self) -> Arc<Figures> {
        let until = Instant::now() + REFRESH_MAX;
        let mut figures = self.board.lock();
        let before = figures.0;
        self.board.is_requested.store(true, Ordering::Release);
        notify(&self.wake);
        while figures.0 == before && !self.is_ended() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.board.published.wait_timeout(figures, left);
            figures = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Arc::clone(&figures.1)
    }
}

impl Board {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, Arc<Figures>)> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Returns a descriptor which becomes readable when a command is queued or figures are requested.
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns what makes [`Inbox::wake`] readable.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// Makes [`Inbox::wake`] unreadable again. Call it before taking commands, so that none is missed.
    pub fn clear_wake(&self) {
        let mut count = [0; 8];
        let _none = rustix::io::read(&*self.wake, &mut count);
    }

    /// Returns the next command, if one is queued. When all handles are dropped, every call returns [`Command::Stop`].
    pub fn next(&self) -> Option<Command> {
        match self.commands.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Command::Stop),
        }
    }

    /// Returns whether new figures were requested, and clears the request.
    #[must_use]
    pub fn take_figures_request(&self) -> bool {
        self.board.is_requested.swap(false, Ordering::AcqRel)
    }

    /// Replaces the figures and wakes all readers that wait for them.
    pub fn publish(&self, figures: Figures) {
        let mut own = self.board.lock();
        *own = (own.0.wrapping_add(1), Arc::new(figures));
        drop(own);
        self.board.published.notify_all();
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.board.is_ended.store(true, Ordering::Release);
        // Under the lock, so that no reader starts to wait in between.
        drop(self.board.lock());
        self.board.published.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_the_bytes_of_the_driver_api() {
        let mut slot = crate::testing::slot(0);
        slot.uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff".to_owned();
        let bytes = slot.uuid_bytes().unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[15]), (0x00, 0x11, 0xff));
        for wrong in [
            "GPU-0011",
            "00112233-4455-6677-8899-aabbccddeeff",
            "MIG-GPU-x/1/0",
        ] {
            slot.uuid = wrong.to_owned();
            assert_eq!(slot.uuid_bytes(), None, "{wrong}");
        }
    }

    #[test]
    fn a_refresh_waits_for_figures_for_a_bounded_time() {
        let (handle, inbox) = service_channel().unwrap();
        let begin = Instant::now();
        assert_eq!(handle.refresh().at_ns, 0);
        assert!(begin.elapsed() >= REFRESH_MAX);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !inbox.take_figures_request() {
                    std::thread::yield_now();
                }
                inbox.publish(Figures {
                    at_ns: 7,
                    ..Figures::none()
                });
            });
            // The request of the first call may have been answered before this call waits.
            while handle.refresh().at_ns != 7 {}
        });
        assert_eq!(handle.figures().at_ns, 7);
    }

    #[test]
    fn commands_arrive_in_order_and_their_number_is_bounded() {
        let (handle, inbox) = service_channel().unwrap();
        for key in 0..u32::try_from(COMMANDS_MAX).unwrap() {
            handle.send(Command::PodRemoved(PodKey(key))).unwrap();
        }
        assert_eq!(handle.try_send(Command::Stop), Err(SendError::Busy));
        inbox.clear_wake();
        assert!(matches!(inbox.next(), Some(Command::PodRemoved(PodKey(0)))));
        assert!(matches!(inbox.next(), Some(Command::PodRemoved(PodKey(1)))));
        assert!(!handle.is_ended());
        drop(inbox);
        assert!(handle.is_ended());
        assert_eq!(handle.send(Command::Stop), Err(SendError::Ended));
    }
}
