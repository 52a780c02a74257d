//! The processor: what it is called, and whether it has the instructions that the program was built with.

/// What is missing of x86-64-v3 and matters here, if anything is; `None` where all is well, and on other
/// architectures.
///
/// Asked of the processor itself: `is_x86_feature_detected` answers from what the program was built for.
pub fn missing() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        let (basic, extended) = (__cpuid(1).ecx, __cpuid_count(7, 0).ebx);
        let features = [
            (basic, 22, "MOVBE"),
            (basic, 23, "POPCNT"),
            (extended, 3, "BMI1"),
            (extended, 5, "AVX2"),
            (extended, 8, "BMI2"),
        ];
        features.into_iter().find(|(word, bit, _)| word >> bit & 1 == 0).map(|(_, _, name)| name)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// What it calls itself.
pub fn name() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("an unknown processor", |(_, model)| model).to_owned()
}

#[cfg(test)]
mod tests {
    /// The tests are built like the program and would not run otherwise.
    #[test]
    fn this_processor_has_all() {
        assert_eq!(super::missing(), None);
    }
}
