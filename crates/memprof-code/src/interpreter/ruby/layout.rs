//! Offsets in CRuby's structures, by version. The structures do not change within a minor version. Offsets that are
//! equal in all versions are in `src/bpf/ruby.bpf.h`.

/// Offsets in CRuby's structures, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Major and minor version.
    pub version: (u8, u8),
    /// Size of `rb_control_frame_t`.
    pub frame_size: u16,
    /// `rb_iseq_location_t`: whether `first_lineno` is an Integer object.
    pub first_line_is_object: bool,
    /// `rb_iseq_constant_body`: `insns_info`.
    pub insns_info: u16,
    /// `rb_iseq_constant_body`: `parent_iseq`.
    pub parent: u16,
    /// `RString`: the characters of an embedded string.
    pub text_embedded: u16,
    /// `RString`: the length of an embedded string; 0 if the length is in the flags.
    pub text_length: u16,
    /// `RClass`, followed by its `rb_classext_t`: `classpath`; 0 if names have no class.
    pub class_path: u16,
    /// `RClass`, followed by its `rb_classext_t`: `attached_object`.
    pub class_attached: u16,
    /// Whether a rescue clause and the function that contains it count as one frame.
    pub joins_rescue: bool,
}

const RUBY_3_1: Layout = Layout {
    version: (3, 1),
    frame_size: 64,
    first_line_is_object: true,
    insns_info: 120,
    parent: 168,
    text_embedded: 16,
    text_length: 0,
    class_path: 0,
    class_attached: 0,
    joins_rescue: false,
};

const RUBY_3_2: Layout = Layout {
    version: (3, 2),
    first_line_is_object: false,
    insns_info: 112,
    parent: 160,
    text_embedded: 24,
    text_length: 16,
    ..RUBY_3_1
};

const RUBY_3_3: Layout = Layout {
    version: (3, 3),
    frame_size: 56,
    ..RUBY_3_2
};

const RUBY_3_4: Layout = Layout {
    version: (3, 4),
    class_path: 152,
    class_attached: 128,
    joins_rescue: true,
    ..RUBY_3_3
};

impl Layout {
    /// The layout of `major`.`minor`.
    pub fn for_version(major: u32, minor: u32) -> Option<&'static Layout> {
        static LAYOUTS: [Layout; 4] = [RUBY_3_1, RUBY_3_2, RUBY_3_3, RUBY_3_4];
        let of = |version: (u8, u8)| (u32::from(version.0), u32::from(version.1));
        LAYOUTS.iter().find(|l| of(l.version) == (major, minor))
    }
}
