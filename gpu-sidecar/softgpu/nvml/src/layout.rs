//! Structs of NVML's interface: same sizes and offsets of fields, under names of this crate.

use crate::handle::Handle;
use crate::pointer::Versioned;

/// Returns text with a terminating zero, truncated to the field.
pub(crate) fn text<const ROOM: usize>(text: &str) -> [u8; ROOM] {
    let mut bytes = [0; ROOM];
    let room = ROOM.saturating_sub(1);
    for (to, byte) in bytes.iter_mut().take(room).zip(text.bytes()) {
        *to = byte;
    }
    bytes
}

macro_rules! versioned {
    ($($name:ident $number:literal;)*) => {$(
        impl Versioned for $name {
            #[expect(clippy::cast_possible_truncation, reason = "no struct is that large")]
            const VERSION: u32 = size_of::<Self>() as u32 | $number << 24;
        }
    )*};
}

versioned! {
    PciInfoExt 1;
    MemoryV2 2;
    Temperature 1;
    DriverBranch 1;
    GpuProfileV2 2;
    GpuProfileV3 3;
    ComputeProfileV2 2;
    ComputeProfileV3 3;
}

/// `nvmlPciInfo_t`, a GPU's location on the PCI bus.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_short: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    /// Device id in the upper half, vendor id in the lower.
    pub(crate) device_id: u32,
    pub(crate) subsystem_id: u32,
    pub(crate) bus_id: [u8; 32],
}

/// Common part of versions 1 and 2 of `nvmlPciInfo_t`; version 1 lacks the last field.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PciInfoV2 {
    pub(crate) bus_id: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) device_id: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PciInfoExt {
    pub(crate) version: u32,
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) device_id: u32,
    pub(crate) subsystem_id: u32,
    pub(crate) class: u32,
    pub(crate) subclass: u32,
    pub(crate) bus_id: [u8; 32],
}

/// `nvmlMemory_t`, amounts in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemoryV1 {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`, amounts in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlUtilization_t`, shares of time in percent.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Rates {
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct EccCounts {
    pub(crate) l1: u64,
    pub(crate) l2: u64,
    pub(crate) memory: u64,
    pub(crate) registers: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ProcessV1 {
    pub(crate) pid: u32,
    pub(crate) memory: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) memory: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ProcessSample {
    pub(crate) pid: u32,
    /// Time in microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) sms: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
}

/// `nvmlSample_t` with an unsigned value; the field has the size of the largest type.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Sample {
    /// Time in microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) value: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Violation {
    /// Time in microseconds since 1970.
    pub(crate) now: u64,
    /// Duration of violations in nanoseconds.
    pub(crate) lasted: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct FieldValue {
    pub(crate) field: u32,
    pub(crate) scope: u32,
    pub(crate) time: i64,
    pub(crate) latency: i64,
    pub(crate) kind: u32,
    pub(crate) answer: u32,
    pub(crate) value: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Temperature {
    pub(crate) version: u32,
    pub(crate) sensor: u32,
    pub(crate) degrees: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DriverBranch {
    pub(crate) version: u32,
    pub(crate) branch: [u8; 80],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GpmSupport {
    pub(crate) version: u32,
    pub(crate) is_supported: u32,
}

/// `nvmlDeviceAttributes_t`, the resources of a MIG device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Attributes {
    pub(crate) sms: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) encoders: u32,
    pub(crate) jpegs: u32,
    pub(crate) ofas: u32,
    pub(crate) gpu_slices: u32,
    pub(crate) compute_slices: u32,
    pub(crate) memory_mib: u64,
}

/// Placement of an instance, in memory slices for a GPU instance and compute slices for a compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct InstancePlacement {
    pub(crate) start: u32,
    pub(crate) size: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GpuProfile {
    pub(crate) id: u32,
    pub(crate) is_peer: u32,
    pub(crate) slices: u32,
    pub(crate) instances: u32,
    pub(crate) sms: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) encoders: u32,
    pub(crate) jpegs: u32,
    pub(crate) ofas: u32,
    pub(crate) memory_mib: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GpuProfileV2 {
    pub(crate) version: u32,
    pub(crate) id: u32,
    pub(crate) is_peer: u32,
    pub(crate) slices: u32,
    pub(crate) instances: u32,
    pub(crate) sms: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) encoders: u32,
    pub(crate) jpegs: u32,
    pub(crate) ofas: u32,
    pub(crate) memory_mib: u64,
    pub(crate) name: [u8; 96],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GpuProfileV3 {
    pub(crate) version: u32,
    pub(crate) id: u32,
    pub(crate) slices: u32,
    pub(crate) instances: u32,
    pub(crate) sms: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) encoders: u32,
    pub(crate) jpegs: u32,
    pub(crate) ofas: u32,
    pub(crate) memory_mib: u64,
    pub(crate) name: [u8; 96],
    pub(crate) capabilities: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GpuInstance {
    pub(crate) device: Handle,
    pub(crate) id: u32,
    pub(crate) profile: u32,
    pub(crate) placement: InstancePlacement,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ComputeProfile {
    pub(crate) id: u32,
    pub(crate) slices: u32,
    pub(crate) instances: u32,
    pub(crate) sms: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) encoders: u32,
    pub(crate) jpegs: u32,
    pub(crate) ofas: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ComputeProfileV2 {
    pub(crate) version: u32,
    pub(crate) profile: ComputeProfile,
    pub(crate) name: [u8; 96],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ComputeProfileV3 {
    pub(crate) version: u32,
    pub(crate) profile: ComputeProfile,
    pub(crate) name: [u8; 96],
    pub(crate) capabilities: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ComputeInstanceV1 {
    pub(crate) device: Handle,
    pub(crate) gpu_instance: Handle,
    pub(crate) id: u32,
    pub(crate) profile: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ComputeInstance {
    pub(crate) first: ComputeInstanceV1,
    pub(crate) placement: InstancePlacement,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct EventV1 {
    pub(crate) device: Handle,
    pub(crate) kind: u64,
    pub(crate) data: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) first: EventV1,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use nvml_wrapper_sys::bindings as theirs;

    use super::*;

    macro_rules! alike {
        ($ours:ident, $theirs:ident, $($own:ident = $other:ident),*) => {
            assert_eq!(size_of::<$ours>(), size_of::<theirs::$theirs>(), stringify!($ours));
            assert_eq!(align_of::<$ours>(), align_of::<theirs::$theirs>(), stringify!($ours));
            $(assert_eq!(
                offset_of!($ours, $own),
                offset_of!(theirs::$theirs, $other),
                "{}.{}", stringify!($ours), stringify!($own)
            );)*
        };
    }

    #[test]
    fn structs_have_the_layout_of_the_interface() {
        alike!(
            PciInfo,
            nvmlPciInfo_t,
            bus_id_short = busIdLegacy,
            domain = domain,
            bus = bus,
            device = device,
            device_id = pciDeviceId,
            subsystem_id = pciSubSystemId,
            bus_id = busId
        );
        alike!(
            PciInfoExt,
            nvmlPciInfoExt_v1_t,
            domain = domain,
            bus = bus,
            device = device,
            device_id = pciDeviceId,
            subsystem_id = pciSubSystemId,
            class = baseClass,
            subclass = subClass,
            bus_id = busId
        );
        assert_eq!(
            offset_of!(PciInfoV2, device_id),
            offset_of!(PciInfo, device_id)
        );
        alike!(
            MemoryV1,
            nvmlMemory_t,
            total = total,
            free = free,
            used = used
        );
        alike!(
            MemoryV2,
            nvmlMemory_v2_t,
            total = total,
            reserved = reserved,
            free = free,
            used = used
        );
        alike!(
            MemoryV1,
            nvmlBAR1Memory_t,
            total = bar1Total,
            free = bar1Free,
            used = bar1Used
        );
        alike!(Rates, nvmlUtilization_t, gpu = gpu, memory = memory);
        alike!(
            EccCounts,
            nvmlEccErrorCounts_t,
            l1 = l1Cache,
            l2 = l2Cache,
            memory = deviceMemory,
            registers = registerFile
        );
        alike!(
            ProcessV1,
            nvmlProcessInfo_v1_t,
            pid = pid,
            memory = usedGpuMemory
        );
        alike!(
            Process,
            nvmlProcessInfo_v2_t,
            pid = pid,
            memory = usedGpuMemory,
            gpu_instance = gpuInstanceId,
            compute_instance = computeInstanceId
        );
        alike!(
            ProcessSample,
            nvmlProcessUtilizationSample_t,
            pid = pid,
            time = timeStamp,
            sms = smUtil,
            memory = memUtil,
            encoder = encUtil,
            decoder = decUtil
        );
        alike!(Sample, nvmlSample_t, time = timeStamp, value = sampleValue);
        alike!(
            Violation,
            nvmlViolationTime_t,
            now = referenceTime,
            lasted = violationTime
        );
        alike!(
            FieldValue,
            nvmlFieldValue_t,
            field = fieldId,
            scope = scopeId,
            time = timestamp,
            latency = latencyUsec,
            kind = valueType,
            answer = nvmlReturn,
            value = value
        );
        alike!(
            Temperature,
            nvmlTemperature_v1_t,
            sensor = sensorType,
            degrees = temperature
        );
        alike!(
            DriverBranch,
            nvmlSystemDriverBranchInfo_v1_t,
            branch = branch
        );
        alike!(
            GpmSupport,
            nvmlGpmSupport_t,
            is_supported = isSupportedDevice
        );
        alike!(
            Attributes,
            nvmlDeviceAttributes_t,
            sms = multiprocessorCount,
            copy_engines = sharedCopyEngineCount,
            decoders = sharedDecoderCount,
            encoders = sharedEncoderCount,
            jpegs = sharedJpegCount,
            ofas = sharedOfaCount,
            gpu_slices = gpuInstanceSliceCount,
            compute_slices = computeInstanceSliceCount,
            memory_mib = memorySizeMB
        );
        alike!(
            InstancePlacement,
            nvmlGpuInstancePlacement_t,
            start = start,
            size = size
        );
        alike!(
            InstancePlacement,
            nvmlComputeInstancePlacement_t,
            start = start,
            size = size
        );
        alike!(
            GpuProfile,
            nvmlGpuInstanceProfileInfo_t,
            id = id,
            is_peer = isP2pSupported,
            slices = sliceCount,
            instances = instanceCount,
            sms = multiprocessorCount,
            copy_engines = copyEngineCount,
            ofas = ofaCount,
            memory_mib = memorySizeMB
        );
        alike!(
            GpuProfileV2,
            nvmlGpuInstanceProfileInfo_v2_t,
            id = id,
            is_peer = isP2pSupported,
            slices = sliceCount,
            instances = instanceCount,
            sms = multiprocessorCount,
            copy_engines = copyEngineCount,
            ofas = ofaCount,
            memory_mib = memorySizeMB,
            name = name
        );
        alike!(
            GpuProfileV3,
            nvmlGpuInstanceProfileInfo_v3_t,
            id = id,
            slices = sliceCount,
            instances = instanceCount,
            sms = multiprocessorCount,
            copy_engines = copyEngineCount,
            ofas = ofaCount,
            memory_mib = memorySizeMB,
            name = name,
            capabilities = capabilities
        );
        alike!(
            GpuInstance,
            nvmlGpuInstanceInfo_t,
            device = device,
            id = id,
            profile = profileId,
            placement = placement
        );
        alike!(
            ComputeProfile,
            nvmlComputeInstanceProfileInfo_t,
            id = id,
            slices = sliceCount,
            instances = instanceCount,
            sms = multiprocessorCount,
            copy_engines = sharedCopyEngineCount,
            decoders = sharedDecoderCount,
            encoders = sharedEncoderCount,
            jpegs = sharedJpegCount,
            ofas = sharedOfaCount
        );
        alike!(
            ComputeProfileV2,
            nvmlComputeInstanceProfileInfo_v2_t,
            profile = id,
            name = name
        );
        alike!(
            ComputeProfileV3,
            nvmlComputeInstanceProfileInfo_v3_t,
            profile = id,
            name = name,
            capabilities = capabilities
        );
        alike!(
            ComputeInstance,
            nvmlComputeInstanceInfo_t,
            placement = placement
        );
        assert_eq!(
            offset_of!(ComputeInstanceV1, profile),
            offset_of!(theirs::nvmlComputeInstanceInfo_t, profileId)
        );
        alike!(
            Event,
            nvmlEventData_t,
            gpu_instance = gpuInstanceId,
            compute_instance = computeInstanceId
        );
        assert_eq!(
            offset_of!(EventV1, data),
            offset_of!(theirs::nvmlEventData_t, eventData)
        );
        assert_eq!(MemoryV2::VERSION, 0x0200_0028);
        assert_eq!(GpuProfileV2::VERSION, 0x0200_0098);
        assert_eq!(ComputeProfileV2::VERSION, 0x0200_0088);
    }

    #[test]
    fn text_is_always_terminated() {
        assert_eq!(text::<4>("ab"), *b"ab\0\0");
        assert_eq!(text::<4>("abcdef"), *b"abc\0");
    }
}
