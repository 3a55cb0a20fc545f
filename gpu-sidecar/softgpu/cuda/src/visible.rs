//! Devices visible to a process: `CUDA_VISIBLE_DEVICES`.

use softgpu_wire::identity::{Identity, uuid_text};

/// Returns the current value of `CUDA_VISIBLE_DEVICES`.
pub(crate) fn variable() -> Option<String> {
    let value = std::env::var_os("CUDA_VISIBLE_DEVICES")?;
    Some(value.to_string_lossy().into_owned())
}

/// Returns the units visible to a process, in its order, as indices in [`Identity::units`]. Of a sliced GPU one slice
/// is visible: the named one, otherwise the first. The list ends before the first invalid entry.
pub(crate) fn units(identity: &Identity, variable: Option<&str>) -> Vec<usize> {
    let first_of = |gpu: usize| identity.gpus[gpu].units.first().copied();
    let Some(variable) = variable else {
        return (0..identity.gpus.len()).filter_map(first_of).collect();
    };
    let mut seen = Vec::new();
    for entry in variable.split(',').map(str::trim) {
        let unit = if let Some(uuid) = entry.strip_prefix("GPU-") {
            let mut named = (0..identity.gpus.len())
                .filter(|&gpu| uuid_text(&identity.gpus[gpu].uuid).starts_with(uuid));
            let only = named.next().filter(|_| named.next().is_none());
            only.filter(|_| !uuid.is_empty()).and_then(first_of)
        } else if let Some(uuid) = entry.strip_prefix("MIG-") {
            let mut named = identity.units.iter().enumerate().filter(|(_, unit)| {
                unit.slice.is_some() && uuid_text(&unit.uuid).starts_with(uuid)
            });
            let only = named.next().filter(|_| named.next().is_none());
            only.filter(|_| !uuid.is_empty()).map(|(at, _)| at)
        } else {
            let number = entry.parse::<usize>().ok();
            number
                .filter(|&gpu| gpu < identity.gpus.len())
                .and_then(first_of)
        };
        match unit {
            // As in the driver, a repeated entry hides all devices.
            Some(unit) if seen.contains(&unit) => return Vec::new(),
            Some(unit) => seen.push(unit),
            None => break,
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use softgpu_wire::config::Config;

    use super::*;

    #[test]
    fn only_named_devices_are_visible() {
        let config = Config::parse(
            "[[gpu]]\npart = \"H100\"\n[[gpu]]\npart = \"H100\"\nslices = [\"3g.40gb\", \"4g.40gb\"]",
        )
        .unwrap();
        let identity = Identity::new(std::path::Path::new("/"), &config).unwrap();
        let uuid = |unit: usize| uuid_text(&identity.units[unit].uuid);
        let gpu = format!("GPU-{}", uuid_text(&identity.gpus[1].uuid));
        let seen = |text: &str| units(&identity, Some(text));
        assert_eq!(units(&identity, None), [0, 1]);
        assert_eq!(seen("1,0"), [1, 0]);
        assert_eq!(seen("0,7,1"), [0]);
        assert_eq!(seen("-1"), []);
        assert_eq!(seen(""), []);
        assert_eq!(seen("0,0"), []);
        assert_eq!(seen(&gpu), [1]);
        assert_eq!(seen(&gpu[..12]), [1]);
        assert_eq!(seen(&format!("MIG-{},0", uuid(2))), [2, 0]);
        assert_eq!(seen("GPU-"), []);
    }
}
