//! What the processor can do, and which of it is used.

/// How far kernels may go, by name: each level has what the ones before it have of the same architecture. Of the levels
/// of another architecture than this processor's, none has any of its instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Isa {
    /// Whatever the processor has.
    #[default]
    Auto,
    /// No vector instructions beyond the baseline of the target.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-VNNI as well.
    AvxVnni,
    /// AVX-512 with VNNI and BF16 as well.
    Avx512,
    /// AMX as well.
    Amx,
    /// NEON, which every 64-bit Arm processor has.
    Neon,
    /// The byte dot products of NEON as well.
    DotProducts,
    /// The byte matrix products of NEON as well.
    I8mm,
}

impl Isa {
    /// All levels with their names.
    pub const ALL: [(&'static str, Isa); 9] = [
        ("auto", Isa::Auto),
        ("scalar", Isa::Scalar),
        ("avx2", Isa::Avx2),
        ("avxvnni", Isa::AvxVnni),
        ("avx512", Isa::Avx512),
        ("amx", Isa::Amx),
        ("neon", Isa::Neon),
        ("dotprod", Isa::DotProducts),
        ("i8mm", Isa::I8mm),
    ];

    /// The level of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(other, _)| *other == name).map(|(_, level)| *level)
    }
}

/// The instruction sets a kernel table is built for. A value of this type proves that the processor has
/// them: other crates get one only from [`Features::detect`] and from methods that take features away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// AVX2, FMA and F16C.
    pub(crate) avx2: bool,
    /// AVX-VNNI (256-bit `vpdpbusd` without AVX-512).
    pub(crate) avx_vnni: bool,
    /// AVX-512 F, BW, DQ, VL and VBMI.
    pub(crate) avx512: bool,
    /// AVX-512 VNNI.
    pub(crate) avx512_vnni: bool,
    /// AVX-512 BF16.
    pub(crate) avx512_bf16: bool,
    /// AMX tiles with INT8 and BF16, permitted by the operating system.
    pub(crate) amx: bool,
    /// NEON, including the conversions of F16.
    pub(crate) neon: bool,
    /// Byte dot products of NEON (`sdot`).
    pub(crate) neon_dot: bool,
    /// Byte matrix products of NEON (`smmla`).
    pub(crate) neon_i8mm: bool,
}

impl Features {
    /// No vector instructions beyond the baseline of the target.
    pub const SCALAR: Self = Self {
        avx2: false,
        avx_vnni: false,
        avx512: false,
        avx512_vnni: false,
        avx512_bf16: false,
        amx: false,
        neon: false,
        neon_dot: false,
        neon_i8mm: false,
    };

    /// What this processor and operating system offer.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Self {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi");
        let avx512_vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        let avx512_bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
        Self {
            avx2,
            avx_vnni: avx2 && is_x86_feature_detected!("avxvnni"),
            avx512,
            avx512_vnni,
            avx512_bf16,
            // Processors with the matrix unit have the others, which its kernels use besides; a virtual machine may hide them.
            amx: avx512_vnni && avx512_bf16 && amx_permitted(),
            ..Self::SCALAR
        }
    }

    /// What this processor offers.
    #[cfg(target_arch = "aarch64")]
    pub fn detect() -> Self {
        let neon = std::arch::is_aarch64_feature_detected!("neon");
        let neon_dot = neon && std::arch::is_aarch64_feature_detected!("dotprod");
        let neon_i8mm = neon_dot && std::arch::is_aarch64_feature_detected!("i8mm");
        Self { neon, neon_dot, neon_i8mm, ..Self::SCALAR }
    }

    /// What this processor offers; other architectures have no kernels of their own.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn detect() -> Self {
        Self::SCALAR
    }

    /// These without what lies above a level.
    pub fn limited(self, level: Isa) -> Self {
        match level {
            Isa::Auto => self,
            Isa::Amx => Self { neon: false, neon_dot: false, neon_i8mm: false, ..self },
            Isa::Avx512 => Self { amx: false, ..self.limited(Isa::Amx) },
            Isa::AvxVnni => Self { avx2: self.avx2, avx_vnni: self.avx_vnni, ..Self::SCALAR },
            Isa::Avx2 => Self { avx2: self.avx2, ..Self::SCALAR },
            Isa::I8mm => Self { neon_i8mm: self.neon_i8mm, ..self.limited(Isa::DotProducts) },
            Isa::DotProducts => Self { neon_dot: self.neon_dot, ..self.limited(Isa::Neon) },
            Isa::Neon => Self { neon: self.neon, ..Self::SCALAR },
            Isa::Scalar => Self::SCALAR,
        }
    }

    /// Every level at or below `self`, weakest first; kernel tests run each of them.
    pub fn levels(self) -> Vec<(&'static str, Self)> {
        let mut levels = vec![("scalar", Self::SCALAR)];
        if self.avx2 {
            levels.push(("avx2", Self { avx2: true, ..Self::SCALAR }));
        }
        if self.avx_vnni {
            levels.push(("avx-vnni", Self { avx2: true, avx_vnni: true, ..Self::SCALAR }));
        }
        if self.avx512 {
            levels.push(("avx512", Self { avx2: true, avx512: true, ..Self::SCALAR }));
        }
        if self.avx512_vnni {
            let vnni = Self { avx2: true, avx512: true, avx512_vnni: true, ..Self::SCALAR };
            levels.push(("avx512-vnni", vnni));
            if self.avx512_bf16 {
                levels.push(("avx512-bf16", Self { avx512_bf16: true, ..vnni }));
            }
        }
        if self.amx {
            levels.push(("amx", self));
        }
        if self.neon {
            levels.push(("neon", self.limited(Isa::Neon)));
        }
        if self.neon_dot {
            levels.push(("neon-dotprod", self.limited(Isa::DotProducts)));
        }
        if self.neon_i8mm {
            levels.push(("neon-i8mm", self.limited(Isa::I8mm)));
        }
        levels
    }

    /// Whether matrices have vector kernels at this level.
    pub(crate) fn vectors(self) -> bool {
        self.avx2 || self.neon
    }

    /// Names of the instruction sets in use, for people.
    pub fn names(self) -> Vec<&'static str> {
        [
            (self.avx2, "AVX2"),
            (self.avx_vnni, "AVX-VNNI"),
            (self.avx512, "AVX-512"),
            (self.avx512_vnni, "AVX-512 VNNI"),
            (self.avx512_bf16, "AVX-512 BF16"),
            (self.amx, "AMX"),
            (self.neon, "NEON"),
            (self.neon_dot, "NEON DOTPROD"),
            (self.neon_i8mm, "NEON I8MM"),
        ]
        .into_iter()
        .filter_map(|(present, name)| present.then_some(name))
        .collect()
    }
}

/// Whether the processor has AMX-TILE, AMX-INT8 and AMX-BF16 and Linux lets this process use the tile state.
/// (The permission is per process and must be asked for before threads use tiles: Linux
/// `Documentation/arch/x86/xstate.rst`.)
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_permitted() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const BF16: u32 = 1 << 22;
    if std::arch::x86_64::__cpuid(0).eax < 7 {
        return false;
    }
    let leaf = std::arch::x86_64::__cpuid_count(7, 0);
    if leaf.edx & (TILE | INT8 | BF16) != (TILE | INT8 | BF16) {
        return false;
    }
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: arch_prctl with this request only changes which state components the process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx_permitted() -> bool {
    false
}

/// The family of an AMD processor (25 is Zen 3 and 4, 26 Zen 5) or of one of Hygon, whose processors are alike: each wants to be
/// asked for memory in its own way. None for the processors of other makers.
pub fn amd_family() -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    {
        static FAMILY: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
        *FAMILY.get_or_init(|| {
            let leaf = std::arch::x86_64::__cpuid(0);
            let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
            let signature = std::arch::x86_64::__cpuid(1).eax;
            // AMD's manual, volume 3, CPUID function 1: the extended family counts where the base family is 15.
            let (base, extended) = (signature >> 8 & 15, signature >> 20 & 255);
            let family = if base == 15 { base + extended } else { base };
            (name == b"AuthenticAMD" || name == b"HygonGenuine").then_some(family)
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_what_the_ones_before_them_have() {
        let all = Features {
            avx2: true,
            avx_vnni: true,
            avx512: true,
            avx512_vnni: true,
            avx512_bf16: true,
            amx: true,
            neon: true,
            neon_dot: true,
            neon_i8mm: true,
        };
        let names = |level| all.limited(level).names().len();
        let x86 = [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Amx].map(names);
        assert_eq!(x86, [0, 1, 2, 5, 6]);
        let arm = [Isa::Neon, Isa::DotProducts, Isa::I8mm, Isa::Auto].map(names);
        assert_eq!(arm, [1, 2, 3, 9]);
        assert_eq!(all.limited(Isa::I8mm).limited(Isa::Avx2), Features::SCALAR);
    }

    #[test]
    fn levels_are_parts_of_what_the_processor_has() {
        let features = Features::detect();
        for (name, level) in features.levels() {
            assert!(level.names().iter().all(|set| features.names().contains(set)), "{name}");
        }
    }
}
