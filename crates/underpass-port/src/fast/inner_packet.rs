//! The packet inside another one, of either family: is it sound, where does it lead, and how it leaves without what was before it.

use underpass_engine::in_kernel::records::MissCause;
use underpass_packet::ethernet;

use super::emit::{ETHERNET, Emit, stack};
use super::input::{TABLES4, TABLES6, ip4, ip6};
use super::leave::room;
use crate::xdp::assembler::{Do, R1, R2, R3, R4, R7, R10, Size, When};

impl Emit {
    /// Has R7 lead to the packet at R2 in the frame; jumps if it is not one that is simply forwarded, or does not end where the
    /// outer packet ends. Changes R1 to R4.
    pub(super) fn sound_inside(&mut self, six: bool) {
        let (header, hops) = (self.because(MissCause::Header), self.because(MissCause::HopLimit));
        self.reach_inside(if six { ip6::LEN } else { ip4::LEN }.into(), header);
        if six {
            self.sound6(0, header, hops);
            let p = &mut self.p;
            p.load(Size::Half, R1, R7, ip6::PAYLOAD);
            p.swap(R1, 16);
            p.add(R1, ip6::LEN.into());
        } else {
            self.sound4(0, header);
            let p = &mut self.p;
            p.load(Size::Byte, R1, R7, ip4::TTL);
            p.jump_if(R1, When::LessOrEqual, 1, hops);
            p.load(Size::Half, R1, R7, ip4::TOTAL);
            p.swap(R1, 16);
            p.jump_if(R1, When::Less, ip4::LEN.into(), header);
        }
        self.ends_there(header);
    }

    /// R1 becomes the slot of the next hop that the destination of the packet, to which R7 leads, has by the look-up whose slot
    /// is in R1; jumps if that is none.
    pub(super) fn look_up_inside(&mut self, six: bool) {
        let p = &mut self.p;
        if six {
            p.load(Size::Double, R2, R7, ip6::DESTINATION);
            p.swap(R2, 64);
            p.load(Size::Double, R3, R7, ip6::DESTINATION + 8);
            p.swap(R3, 64);
            p.set(R4, TABLES6);
        } else {
            p.load(Size::Word, R2, R7, ip4::DESTINATION);
            p.swap(R2, 32);
            p.compute(R2, Do::ShiftLeft, 32);
            p.set(R3, 0);
            p.set(R4, TABLES4);
        }
        p.call_here(self.find);
        self.forwards();
    }

    /// Takes out of the frame what is before the packet that begins where it is noted, for the next hop whose slot is in R1.
    pub(super) fn unwrap(&mut self, six: bool) {
        let (flags, ethertype) =
            if six { (room::DECAP_L3_IPV6, ethernet::IPV6) } else { (room::DECAP_L3_IPV4, ethernet::IPV4) };
        self.find_next_hop();
        self.p.load(Size::Double, R2, R10, stack::AT);
        self.fits_from(0);
        self.trim();
        self.p.load(Size::Double, R2, R10, stack::AT);
        self.p.set(R4, flags);
        self.take_out();
        if six {
            self.lower6(ETHERNET);
        } else {
            self.lower4(ETHERNET);
        }
        self.write_ethertype(ethertype);
    }
}
