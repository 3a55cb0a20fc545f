//! Structs of NVML's interface: those of the vendor's header as `nvml-wrapper-sys` generates them, under shorter names, and the
//! first versions of three which it lacks.

use std::ffi::c_char;

pub(crate) use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t as Bar1Memory, nvmlComputeInstanceInfo_t as ComputeInstance,
    nvmlComputeInstancePlacement_t as ComputePlacement,
    nvmlComputeInstanceProfileInfo_t as ComputeProfile,
    nvmlComputeInstanceProfileInfo_v2_t as ComputeProfileV2,
    nvmlComputeInstanceProfileInfo_v3_t as ComputeProfileV3, nvmlDeviceAttributes_t as Attributes,
    nvmlEccErrorCounts_t as EccCounts, nvmlEventData_t as Event, nvmlFieldValue_t as FieldValue,
    nvmlGpmSupport_t as GpmSupport, nvmlGpuInstanceInfo_t as GpuInstance,
    nvmlGpuInstancePlacement_t as GpuPlacement, nvmlGpuInstanceProfileInfo_t as GpuProfile,
    nvmlGpuInstanceProfileInfo_v2_t as GpuProfileV2,
    nvmlGpuInstanceProfileInfo_v3_t as GpuProfileV3, nvmlMemory_t as Memory,
    nvmlMemory_v2_t as MemoryV2, nvmlPciInfo_t as PciInfo, nvmlPciInfoExt_v1_t as PciInfoExt,
    nvmlProcessInfo_v1_t as ProcessV1, nvmlProcessInfo_v2_t as Process,
    nvmlProcessUtilizationSample_t as ProcessSample, nvmlSample_t as Sample,
    nvmlSystemDriverBranchInfo_v1_t as DriverBranch, nvmlTemperature_v1_t as Temperature,
    nvmlUtilization_t as Rates, nvmlValue_t as Value, nvmlViolationTime_t as Violation,
};

use crate::handle::Handle;
use crate::pointer::Versioned;

/// Returns text with a terminating zero, truncated to the field.
pub(crate) fn text<const ROOM: usize>(text: &str) -> [c_char; ROOM] {
    let mut field = [0; ROOM];
    let room = ROOM.saturating_sub(1);
    for (to, byte) in field.iter_mut().take(room).zip(text.bytes()) {
        *to = byte.cast_signed();
    }
    field
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

/// PCI location, in the form of the second version, and without its last field of the first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PciInfoV2 {
    pub(crate) bus_id: [c_char; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) device_id: u32,
}

/// Compute instance, without the placement of the second version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ComputeInstanceV1 {
    pub(crate) device: Handle,
    pub(crate) gpu_instance: Handle,
    pub(crate) id: u32,
    pub(crate) profile: u32,
}

/// Event, without the instances of the second version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct EventV1 {
    pub(crate) device: Handle,
    pub(crate) kind: u64,
    pub(crate) data: u64,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn first_versions_are_prefixes_of_the_second() {
        assert_eq!(
            offset_of!(PciInfoV2, bus_id),
            offset_of!(PciInfo, busIdLegacy)
        );
        assert_eq!(
            offset_of!(PciInfoV2, device_id),
            offset_of!(PciInfo, pciDeviceId)
        );
        assert_eq!(
            offset_of!(ComputeInstanceV1, gpu_instance),
            offset_of!(ComputeInstance, gpuInstance)
        );
        assert_eq!(
            offset_of!(ComputeInstanceV1, profile),
            offset_of!(ComputeInstance, profileId)
        );
        assert_eq!(offset_of!(EventV1, kind), offset_of!(Event, eventType));
        assert_eq!(offset_of!(EventV1, data), offset_of!(Event, eventData));
    }

    #[test]
    fn versions_are_those_of_the_vendors_header() {
        assert_eq!(MemoryV2::VERSION, 0x0200_0028);
        assert_eq!(GpuProfileV2::VERSION, 0x0200_0098);
        assert_eq!(ComputeProfileV2::VERSION, 0x0200_0088);
    }

    #[test]
    fn text_always_ends_with_a_zero() {
        let field = |text: [c_char; 4]| text.map(c_char::cast_unsigned);
        assert_eq!(field(text("ab")), *b"ab\0\0");
        assert_eq!(field(text("abcdef")), *b"abc\0");
    }
}
