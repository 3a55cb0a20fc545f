//! Types shared by the parts of the agent, and the channel between them and the token service.
//!
//! The parts around the service (NVML, MPS, pods) discover slots and pods and send them as [`Command`]s; the service schedules
//! the pods and publishes [`Figures`]. Metrics and the control API read figures and never query the service otherwise, so that
//! a scrape costs it nothing but a copy.
//!
//! | from | to | by |
//! |---|---|---|
//! | NVML, MPS, pods, control API | service | [`ServiceHandle::send`]: at most [`COMMANDS_MAX`] queued, then the sender blocks |
//! | service | metrics, control API | [`Inbox::publish`]: one set of figures, replaced as a whole |
//! | NVML | service | [`DeviceMemory`]: device memory of each process, each second |

mod channel;
mod device_memory;
pub use agent_core::{
    AgentFigures, Figures, Histogram, MigInstance, MoveCounters, OrderAnswer, PODS_MAX, Pod,
    PodCounters, PodFigures, PodKey, PodOrder, PodSettings, ProcessFigures, ProcessMemory,
    SLICES_OF_GPU, Slot, SlotFigures, SlotKey, SlotKind, WAIT_BOUNDS_NS, protocol_refusal,
};
pub use channel::{
    COMMANDS_MAX, Command, Inbox, OrderReply, REFRESH_MAX, SendError, ServiceHandle,
    ServiceSettings, Waker, service_channel,
};
pub use device_memory::DeviceMemory;
