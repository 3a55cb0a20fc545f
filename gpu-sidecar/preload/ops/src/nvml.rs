//! NVML as seen by the pod: the pod's device, and the only process on it, which is the calling one.

use crate::memory::{contexts, info};
use crate::platform::{Driver, Platform};

/// `nvmlReturn_t`: 0 or an error code.
pub type Return = u32;

/// `NVML_ERROR_INVALID_ARGUMENT`: the list has no buffer.
pub const INVALID_ARGUMENT: Return = 2;
/// `NVML_ERROR_INSUFFICIENT_SIZE`: the buffer is too small for the list.
pub const INSUFFICIENT_SIZE: Return = 7;

/// Returns the hexadecimal digits of a device's UUID in lower case, without prefix and hyphens.
#[must_use]
pub fn digits(text: &[u8]) -> Vec<u8> {
    let rest = text.split(|byte| *byte == b'-').skip(1);
    rest.flatten().map(u8::to_ascii_lowercase).collect()
}

/// Returns the UUID digits of the pod's device, which is the driver's first one; `None` if the driver cannot name it.
pub fn own_digits<P: Driver>(host: P) -> Option<Vec<u8>> {
    let uuid = host.device_uuid(host.device(0).ok()?).ok()?;
    let hex = uuid.iter().map(|byte| format!("{byte:02x}"));
    Some(hex.collect::<String>().into_bytes())
}

/// Returns the memory of this process on the device in bytes; `None` if it has no context.
pub fn own_memory<P: Platform>(host: P) -> Option<u64> {
    contexts::has_context(host).then(|| info::held(host))
}

/// Returns the number of entries and the result for a list of processes with at most one entry, by NVML's rules for lists: `room` is the
/// number of entries that the program has room for, and `has_list` whether it has passed a buffer. With result 0 and a process the
/// entry is to be written.
#[must_use]
pub const fn answer(room: u32, has_list: bool, has_process: bool) -> (u32, Return) {
    let number = has_process as u32;
    let code = if room < number {
        INSUFFICIENT_SIZE
    } else if has_process && !has_list {
        INVALID_ARGUMENT
    } else {
        0
    };
    (number, code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_device_is_identified_by_its_digits() {
        let gpu = b"GPU-12345678-9ABC-def0-1234-56789abcdef0";
        assert_eq!(digits(gpu), b"123456789abcdef0123456789abcdef0");
        assert_eq!(
            digits(b"MIG-12345678-9abc-def0-1234-56789abcdef0"),
            digits(gpu)
        );
        assert!(digits(b"").is_empty());
    }

    #[test]
    fn the_pods_device_is_the_drivers_first() {
        let own = own_digits(Fake::new());
        assert_eq!(own, Some(b"07".repeat(16)));
    }

    #[test]
    fn a_list_is_answered_by_nvmls_rules() {
        assert_eq!(answer(0, false, true), (1, INSUFFICIENT_SIZE));
        assert_eq!(answer(1, false, true), (1, INVALID_ARGUMENT));
        assert_eq!(answer(1, true, true), (1, 0));
        assert_eq!(answer(9, true, true), (1, 0));
        assert_eq!(answer(0, false, false), (0, 0));
    }

    #[test]
    fn a_process_without_a_context_is_not_listed() {
        assert_eq!(own_memory(Fake::new()), None);
    }
}
