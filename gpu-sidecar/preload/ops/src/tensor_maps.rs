//! Descriptors of tensors (`CUtensorMap`), by which kernels reach memory whose addresses their arguments do not show.

use preload_state::tensor_maps::Contents;

use crate::cuda::{Address, SUCCESS};
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::Platform;

/// Encodes a descriptor of the tensor at an address, or changes its address. `contents` returns what the driver has written. It is noted also where
/// restores are not streamed, as they may be later.
pub fn encode<P: Platform>(
    host: P,
    call: Call<'_>,
    contents: impl FnOnce() -> Option<Contents>,
    address: Address,
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let code = call();
    if code == SUCCESS
        && let Some(contents) = contents()
    {
        let hides = host.process().tensor_maps.note(contents, address);
        if hides {
            host.log(
                "the driver's descriptors of tensors do not show their addresses: amid restores of this process each launch waits for all memory",
            );
        }
    }
    Outcome::Done(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::INVALID_VALUE;
    use crate::fake::Fake;

    #[test]
    fn a_descriptor_is_known_once_the_driver_has_encoded_it() {
        let fake = Fake::new();
        let address = |contents: Contents| fake.process.tensor_maps.address(&contents);
        let encoded = encode(fake, &|| SUCCESS, || Some([5; 16]), 5);
        assert_eq!(encoded, Outcome::Done(SUCCESS));
        assert_eq!(address([5; 16]), Some(5));
        let failed = encode(fake, &|| INVALID_VALUE, || Some([6; 16]), 6);
        assert_eq!(failed, Outcome::Done(INVALID_VALUE));
        assert_eq!(address([6; 16]), None);
    }
}
