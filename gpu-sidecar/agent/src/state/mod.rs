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
mod figures;
mod pods;
mod slots;
pub use crate::config::SlotKind;
pub use channel::{
    COMMANDS_MAX, Command, Declined, Inbox, OrderReply, PUBLISH_SPAN, REFRESH_MAX, SendError,
    ServiceHandle, ServiceSettings, service_channel,
};
pub use figures::{
    AgentFigures, DeviceMemory, Figures, Histogram, PodCounters, PodFigures, ProcessFigures,
    ProcessMemory, SlotFigures, WAIT_BOUNDS_NS, protocol_refusal,
};
pub use pods::{PODS_MAX, Pod, PodKey, PodSettings};
pub use slots::{MigInstance, SLICES_OF_GPU, Slot, SlotKey};
