//! [`Nvml`] on the library itself, through the crate `nvml-wrapper`.

use std::ffi::c_ulong;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::{
    Driver, GPUS_MAX, Gpu, GpuSurvey, Instance, Nvml, PROCESSES_MAX, Survey, Unit, WATCH_SPAN,
    Watch, Xid, cores_per_sm,
};

/// The loaded NVML library.
pub(crate) struct Library(nvml_wrapper::Nvml);

impl Library {
    /// Loads and initialises the library.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let opened = nvml_wrapper::Nvml::builder()
            .lib_path(path.as_os_str())
            .init();
        opened.map(Self).map_err(|error| match error {
            NvmlError::LibloadingError(error) => {
                format!("{}: cannot be loaded: {error}", path.display())
            }
            error => format!("{}: {}", path.display(), show(&error)),
        })
    }

    /// Returns the number of the first GPU which shares the path of a GPU to the host's memory. What cannot be queried shares nothing.
    fn host_path(&self, number: u32, device: &Device<'_>) -> u32 {
        let mut earlier = 0..number;
        let shares = |other: &u32| {
            let level = self
                .0
                .device_by_index(*other)
                .and_then(|other| device.topology_common_ancestor(other));
            level.is_ok_and(|level| shares_path(&level))
        };
        earlier.find(shares).unwrap_or(number)
    }

    fn gpu(&self, number: u32, notes: &mut Vec<String>) -> Result<Gpu, NvmlError> {
        let device = self.0.device_by_index(number)?;
        let capability = device.cuda_compute_capability();
        let capability = match capability {
            Ok(version) => u32::try_from(version.major)
                .ok()
                .zip(u32::try_from(version.minor).ok()),
            Err(error) => lost_or(error)?,
        };
        let is_mig = match device.mig_mode() {
            Ok(mode) => mode.current == 1,
            Err(error) => lost_or(error)?.unwrap_or(false),
        };
        let cores = match device.num_cores() {
            Ok(cores) => Some(cores),
            Err(error) => lost_or(error)?,
        };
        let per_sm = capability.and_then(cores_per_sm);
        let sms = cores.zip(per_sm).map(|(cores, per_sm)| cores / per_sm);
        let mut instances = Vec::new();
        if is_mig {
            for at in 0..device.mig_device_count()? {
                match device.mig_device_by_index(at) {
                    Ok(found) => match instance(&found, at) {
                        Ok(instance) => instances.push(instance),
                        Err(NvmlError::GpuLost) => return Err(NvmlError::GpuLost),
                        Err(error) => notes.push(format!(
                            "cannot query MIG instance {number}:{at}: {}",
                            show(&error)
                        )),
                    },
                    Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Gpu {
            unit: Unit {
                uuid: device.uuid()?,
                memory_bytes: match device.memory_info() {
                    Ok(memory) => memory.total,
                    // Only its instances are slots.
                    Err(error) if is_mig => lost_or(error)?.unwrap_or(0),
                    Err(error) => return Err(error),
                },
                sms: sms.filter(|sms| *sms > 0),
                // In MIG mode the instances list the processes.
                processes: if is_mig {
                    Vec::new()
                } else {
                    processes(&device)?
                },
            },
            product: device.name()?,
            capability,
            host_path: self.host_path(number, &device),
            numa_nodes: numa_nodes(&device)?,
            is_mig,
            instances,
        })
    }
}

/// Returns the NUMA nodes that are nearest to a GPU, ascending. A driver that does not report them knows none.
fn numa_nodes(device: &Device<'_>) -> Result<Vec<u32>, NvmlError> {
    /// Words of the set of nodes, for 1,024 of them.
    const WORDS: usize = 16;
    /// `NVML_AFFINITY_SCOPE_NODE`: the nodes nearest to the GPU, not those of its whole socket.
    const NEAREST: u32 = 0;
    let set = match device.memory_affinity(WORDS, NEAREST) {
        Ok(set) => set,
        Err(error) => lost_or(error)?.unwrap_or_default(),
    };
    let nodes = (0..).zip(set).flat_map(|(at, word)| {
        let bits = (0..c_ulong::BITS).filter(move |bit| word >> bit & 1 == 1);
        bits.map(move |bit| at * c_ulong::BITS + bit)
    });
    Ok(nodes.collect())
}

/// Returns whether two GPUs whose nearest common ancestor is of this level share what connects them to the host: a board or PCIe switches.
const fn shares_path(level: &TopologyLevel) -> bool {
    matches!(
        level,
        TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple
    )
}

fn instance(device: &Device<'_>, number: u32) -> Result<Instance, NvmlError> {
    let attributes = match device.attributes() {
        Ok(attributes) => Some(attributes),
        Err(error) => lost_or(error)?,
    };
    let memory = match device.memory_info() {
        Ok(memory) => Some(memory.total),
        Err(error) => lost_or(error)?,
    };
    let attributed = attributes.as_ref().map(|own| own.memory_size_mb << 20);
    Ok(Instance {
        number,
        slices: attributes
            .as_ref()
            .map(|own| own.compute_instance_slice_count)
            .filter(|slices| *slices > 0),
        unit: Unit {
            uuid: device.uuid()?,
            memory_bytes: memory.or(attributed).unwrap_or(0),
            sms: attributes
                .map(|own| own.multiprocessor_count)
                .filter(|sms| *sms > 0),
            processes: processes(device)?,
        },
    })
}

/// Returns the compute processes of a whole GPU or an instance, MPS clients included.
fn processes(device: &Device<'_>) -> Result<Vec<(u32, u64, bool)>, NvmlError> {
    let bytes = |process: &ProcessInfo| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => bytes,
        UsedGpuMemory::Unavailable => 0,
    };
    let or_empty = |answer| -> Result<Vec<ProcessInfo>, NvmlError> {
        match answer {
            Ok(processes) => Ok(processes),
            Err(error) => Ok(lost_or(error)?.unwrap_or_default()),
        }
    };
    let clients = or_empty(device.mps_running_compute_processes())?;
    let mut all: Vec<_> = clients
        .iter()
        .map(|process| (process.pid, bytes(process), true))
        .collect();
    for process in or_empty(device.running_compute_processes())? {
        match all.iter_mut().find(|listed| listed.0 == process.pid) {
            Some(listed) => listed.1 = listed.1.max(bytes(&process)),
            None => all.push((process.pid, bytes(&process), false)),
        }
    }
    all.truncate(PROCESSES_MAX);
    Ok(all)
}

/// Returns `None` for an unsupported query, and the error when the device is lost.
fn lost_or<T>(error: NvmlError) -> Result<Option<T>, NvmlError> {
    match error {
        NvmlError::GpuLost | NvmlError::Uninitialized => Err(error),
        _ => Ok(None),
    }
}

/// Returns a short description of an error.
fn show(error: &NvmlError) -> String {
    match error {
        NvmlError::GpuLost => "the GPU is lost".to_owned(),
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::NoPermission => "no permission to use the driver".to_owned(),
        error => error.to_string(),
    }
}

impl Nvml for Library {
    fn survey(&self) -> Result<Survey, String> {
        let count = self.0.device_count().map_err(|error| show(&error))?;
        let version = self.0.sys_driver_version().unwrap_or_default();
        let cuda = self.0.sys_cuda_driver_version().ok().and_then(|number| {
            let number = u32::try_from(number).ok()?;
            Some((number / 1000, number % 1000 / 10))
        });
        let mut notes = Vec::new();
        if count > GPUS_MAX {
            notes.push(format!("{count} GPUs; only the first {GPUS_MAX} are used"));
        }
        let gpus = (0..count.min(GPUS_MAX)).map(|number| GpuSurvey {
            number,
            gpu: self.gpu(number, &mut notes).map_err(|error| show(&error)),
        });
        Ok(Survey {
            driver: Driver { version, cuda },
            gpus: gpus.collect(),
            notes,
        })
    }

    fn watch_errors(&self, report: &mut dyn FnMut(Option<Xid>) -> Watch) -> Result<(), String> {
        let fail = |error: NvmlError| show(&error);
        let mut set = self.0.create_event_set().map_err(fail)?;
        let count = self.0.device_count().map_err(fail)?;
        for number in 0..count.min(GPUS_MAX) {
            let Ok(device) = self.0.device_by_index(number) else {
                continue;
            };
            let kind = EventTypes::CRITICAL_XID_ERROR;
            let has = device.supported_event_types();
            if has.is_ok_and(|kinds| kinds.contains(kind)) {
                set = device
                    .register_events(kind, set)
                    .map_err(|error| show(&error.error))?;
            }
        }
        let span_ms = u32::try_from(WATCH_SPAN.as_millis()).unwrap_or(u32::MAX);
        loop {
            let xid = match set.wait(span_ms) {
                Ok(event) if event.event_type.contains(EventTypes::CRITICAL_XID_ERROR) => {
                    Some(Xid {
                        gpu_uuid: event.device.uuid().ok(),
                        number: match event.event_data {
                            Some(XidError::Value(number)) => Some(number),
                            _ => None,
                        },
                    })
                }
                Ok(_) | Err(NvmlError::Timeout) => None,
                // The survey finds the GPU concerned.
                Err(error) => return Err(show(&error)),
            };
            if report(xid) == Watch::Off {
                return Ok(());
            }
        }
    }
}
