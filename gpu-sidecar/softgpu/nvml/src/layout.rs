//! The structs that callers lay out for NVML: the same sizes and places of fields, under names of our own.

use crate::border::Versioned;
use crate::handle::Handle;

/// Text in a struct, ended by a zero; what does not fit is left out.
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
    BusPlaceExt 1;
    MemoryV2 2;
    Temperature 1;
    DriverBranch 1;
    GpuProfileV2 2;
    GpuProfileV3 3;
    ComputeProfileV2 2;
    ComputeProfileV3 3;
}

/// Where a GPU is on the PCI bus.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BusPlace {
    pub(crate) bus_id_short: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    /// Device above, vendor below.
    pub(crate) device_id: u32,
    pub(crate) subsystem_id: u32,
    pub(crate) bus_id: [u8; 32],
}

/// The part of it that the second version of the struct has, and, without its last field, the first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BusPlaceOld {
    pub(crate) bus_id: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) device_id: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BusPlaceExt {
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

/// In bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemoryV1 {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// In bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// In percent.
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
    /// Microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) sms: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
}

/// A sample of an unsigned number; the place of its value is as large as the largest.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Sample {
    /// Microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) value: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Violation {
    /// Microseconds since 1970.
    pub(crate) now: u64,
    /// Nanoseconds.
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

/// What a MIG device has.
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

/// In memory slices for a GPU instance, in compute slices for a compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Place {
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
    pub(crate) place: Place,
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
    pub(crate) place: Place,
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
    fn structs_lie_as_callers_lay_them_out() {
        alike!(
            BusPlace,
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
            BusPlaceExt,
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
            offset_of!(BusPlaceOld, device_id),
            offset_of!(BusPlace, device_id)
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
            Place,
            nvmlGpuInstancePlacement_t,
            start = start,
            size = size
        );
        alike!(
            Place,
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
            place = placement
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
            place = placement
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
    fn text_always_ends() {
        assert_eq!(text::<4>("ab"), *b"ab\0\0");
        assert_eq!(text::<4>("abcdef"), *b"abc\0");
    }
}
